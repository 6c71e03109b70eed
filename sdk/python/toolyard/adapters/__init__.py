"""Adapters of agent frameworks: a framework's own tool calls are executed on the fleet.

Each is a module of its own that needs its framework: ``langgraph``, ``openai_agents``, ``pydantic_ai``, ``anthropic``,
``llama_index``, ``google_adk``. They use the public client and nothing else.
"""
