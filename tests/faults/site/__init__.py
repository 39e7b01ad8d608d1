"""The demo site with agents that do something in the world, and places at which its process can be told to die."""
