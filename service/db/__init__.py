"""Where the truth is kept: tables (`schema`), migrations (`migrate`), transactions (`store`)."""
