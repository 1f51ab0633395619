"""The pages, rendered on the server. They only read; the REST API changes things."""
