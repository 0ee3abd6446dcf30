"""Contains the HTTP microservice and the command line."""
