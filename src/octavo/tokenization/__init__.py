"""Text in and out: tokenizers, chat templates, and text as it is generated."""
