"""HTTP code that all features share: problems, paging, ETags, OpenAPI, dependencies."""
