"""The MCP client: sessions pooled per server and identity, and one door that every request passes.

``client.py`` is the face, ``transport.py`` the door. Nothing here is imported before a server is used.
"""
