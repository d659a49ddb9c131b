"""The wire formats: one internal request and reply form, and a codec for each public protocol."""
