"""The ``canal-json`` protocol: TiCDC's JSON envelope, read and written."""
