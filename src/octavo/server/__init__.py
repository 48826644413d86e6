"""The OpenAI-compatible server; needs the extra ``octavo[server]``."""
