"""The database: tables (`schema`), migrations (`migrate`), transactions (`store`)."""
