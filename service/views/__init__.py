"""How rows look from outside: the models that REST, pages, report and alerts share."""
