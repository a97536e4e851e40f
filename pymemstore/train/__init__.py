"""Training of models that write and read memories."""
