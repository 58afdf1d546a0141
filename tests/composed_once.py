"""Have Hydra do once in a process what it does anew for every command: in a test's process, and in those forked of it.

Doors called by the hundred are mostly Hydra's work, of which nothing differs but the settings at the end. What a choice
of groups composes to is kept, and copied for who asks again; settings are put into the copy by Hydra itself. So are the
schema of a class and the content of a preset's file. It holds in whoever imports this; a door whose interpreter is
started anew does as Hydra does.
"""

import copy
import pickle
from types import SimpleNamespace

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_store import ConfigStore

from ddppo.config import compose
from ddppo.config.presets import schemas
from ddppo.config.settings import SECTIONS, config_class
from ddppo.config.variants import SECTIONS_WITH_VARIANTS

_store = ConfigStore.store
_store_schemas = compose._store_schemas
_defaults_of = config_loader_impl.create_defaults_list
_composed_from = ConfigLoaderImpl._compose_config_from_defaults_list
_loaded_from = CachingConfigRepository.load_config

_stored: list[tuple] = []  # the classes whose schemas ConfigStore holds
_schemas: dict[tuple, object] = {}  # what ConfigStore holds under a name, and of which class that is
_defaults: dict[tuple, tuple[list, dict]] = {}
_composed: dict[tuple, bytes] = {}
_loaded: dict[tuple, bytes] = {}


def store_once(self, name, node, group=None, package=None, provider=None):
    """Store as Hydra does, but no class under the name that it has already."""
    of_whom = (id(self.repo), group, name, package, provider)
    if isinstance(node, type) and _schemas.get(of_whom) is node:
        return
    _store(self, name, node, group, package, provider)
    _schemas[of_whom] = node


def store_schemas_once(store):
    """Make the schemas of a command unless those of the last are of the same classes: a third of a command's work."""
    variants = [(section, each.base) for section, each in SECTIONS_WITH_VARIANTS.items()]
    classes = (id(store.repo), config_class(), *variants, *SECTIONS.items(), *schemas().items())
    if classes not in _stored:
        _store_schemas(store)
        _stored[:] = [classes]


def _where(repo):
    """Return what tells one set of presets from another."""
    paths = tuple((source.scheme(), source.path) for source in repo.get_sources())
    return (paths, *((key, id(node)) for key, node in _schemas.items() if isinstance(node, type)))


def defaults_once(repo, config_name, overrides_list, prepend_hydra, skip_missing):
    """Return the list of presets that a choice of groups makes, and with it the overrides that are settings."""
    given = [each for each in overrides_list if not each.is_sweep_override()]
    settings = [
        each for each in given if isinstance(each.value(), dict) or not repo.group_exists(each.key_or_group)
    ]
    chosen = tuple(each.input_line for each in given if each not in settings)
    choice = (_where(repo), config_name, prepend_hydra, skip_missing, chosen)
    if choice not in _defaults:
        made = _defaults_of(repo, config_name, overrides_list, prepend_hydra, skip_missing)
        _defaults[choice] = (made.defaults, made.overrides.known_choices)
    defaults, known_choices = _defaults[choice]
    return SimpleNamespace(
        defaults=copy.deepcopy(defaults),
        config_overrides=settings,
        overrides=SimpleNamespace(known_choices=dict(known_choices)),
    )


def compose_once(self, defaults, repo):
    choice = (_where(repo), repr(defaults))
    if choice not in _composed:
        _composed[choice] = pickle.dumps(_composed_from(self, defaults, repo))
    return pickle.loads(_composed[choice])


def share_sources(self, delegate):
    """Keep a repository that may be given other sources, without a copy of all that these hold."""
    self.delegate, self.cache = copy.copy(delegate), {}


def load_once(self, config_path):
    """Return a preset as Hydra reads it, a copy of its own for every command, for Hydra changes what it read."""
    if (key := f"config_path={config_path}") in self.cache:
        return self.cache[key]
    preset = (_where(self), config_path)
    if preset in _loaded:
        self.cache[key] = pickle.loads(_loaded[preset])
    elif (made := _loaded_from(self, config_path)) is not None:
        _loaded[preset] = pickle.dumps(made)
    return _loaded_from(self, config_path)


compose._store_schemas = store_schemas_once
ConfigStore.store = store_once
CachingConfigRepository.__init__ = share_sources
CachingConfigRepository.load_config = load_once
config_loader_impl.create_defaults_list = defaults_once
ConfigLoaderImpl._compose_config_from_defaults_list = compose_once
