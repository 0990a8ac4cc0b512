"""Where the columns and types of a table come from, a module for each protocol (driver)."""
