"""Work that may crash or hang, in processes of its own that are ended in bounded time."""
