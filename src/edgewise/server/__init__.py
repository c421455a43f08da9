"""The server on the device: OpenAI's API and a web page in front of one pair of models."""
