"""What a model may ask for: each bound of a hostile file, checked before it costs anything."""
