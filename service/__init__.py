"""The HTTP microservice and the command line."""
