"""The demo site with its runs on a task queue, as three sites would be configured."""
