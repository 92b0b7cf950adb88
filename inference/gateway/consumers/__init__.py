"""The API's endpoints, a file for each kind: body in, response or stream out."""
