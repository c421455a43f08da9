"""The local server: OpenAI's and Anthropic's APIs and a web page, for an edge and a cloud model."""
