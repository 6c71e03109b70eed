//! Tools that are HTTP endpoints.
