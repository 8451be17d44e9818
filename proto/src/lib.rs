//! Generated messages and services of the coppice.v1 API
