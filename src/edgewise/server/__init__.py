"""The server on the device: OpenAI's and Anthropic's APIs and a web page for a pair of models."""
