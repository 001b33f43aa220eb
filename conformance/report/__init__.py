"""What records say, for a person: on a terminal, as one HTML page, as Markdown; and their merge."""
