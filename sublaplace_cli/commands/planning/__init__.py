"""What a command will compute: its work as formulas, and how long that takes at rates measured here and now."""
