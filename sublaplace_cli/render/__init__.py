"""Showing a result: `text` (tables, JSON, CSV), `ci` (JUnit, GitHub), `plots` (pictures), `html` (the report)."""
