"""Every exporter, from its installation to what Convoy answers."""
