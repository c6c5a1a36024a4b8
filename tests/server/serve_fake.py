"""A process that serves a fake engine: prints its port, exits as a real one does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_engine import FakeEngine
from headway.config import ServerConfig
from headway.server.app import create_app
from headway.server.serve import bind, serve

config = ServerConfig(port=0, drain_s=10)
engine = FakeEngine()
engine.pace_s, engine.answer = 0.02, "x" * 60
listener = bind(config)
print(listener.getsockname()[1], flush=True)
serve(create_app(engine, config), listener, config)
