"""A first load from a MariaDB database into a lake while its rows change: `python -m examples.first_load`."""
