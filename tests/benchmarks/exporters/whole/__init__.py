"""Every exporter, from its installation to Convoy's answers."""
