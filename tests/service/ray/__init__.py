"""service/ray: what needs no Ray, and a real cluster where Ray is installed (extra `ray`)."""
