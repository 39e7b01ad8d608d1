"""CopilotKit's runtime protocol, as its 1.74 packages speak it: both of its transports on one mount.

Law: it translates. Runs, history, rights and everything that is stored are the engine's and the services', as for
every other address; what is here knows CopilotKit's paths, bodies and answers, and nothing else does.
"""
