"""Environments written for other libraries, as Hone environments. None of the libraries is imported here."""
