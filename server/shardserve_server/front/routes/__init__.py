"""The routes of the front."""
