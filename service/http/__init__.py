"""HTTP code shared by all features: problems, paging, ETags, OpenAPI, dependencies."""
