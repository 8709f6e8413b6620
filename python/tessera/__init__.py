"""Tools of Tessera that work on files. Each is a module that is run by name: python -m tessera.import_deepspeed --help."""
