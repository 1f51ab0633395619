"""What does a person see in a browser? Pages rendered on the server, without a build step.

`sessions` (who is it) → `route` (every page's guard and headers) → `load` (rows → what a page
shows) → `charts` (inline SVG) → `templates`. A new page is a function in `routes` and a template.
The pages only read; what changes anything is the REST API.
"""
