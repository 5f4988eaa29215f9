"""Read each publisher's files: one module per publisher."""
