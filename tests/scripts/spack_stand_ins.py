# SPDX-License-Identifier: Apache-2.0
"""Enough of Spack's package API to execute a recipe and to ask what a spec would build.

Directives are collected; `concretize` then applies defaults, conditions, conflicts, requirements and dependencies as Spack
does where only one package has choices to make. The versions of dependencies are given, not searched for.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types


# What `from spack.package import *` brings; nothing else of this file may hide a missing import of a recipe.
__all__ = (
    "InstallError SkipTest cache_extra_test_sources check_outputs conflicts depends_on extends get_cmake_prefix_path install_tree "
    "join_path license requires run_after variant version when which working_dir"
).split()


class Refused(Exception):
    """The spec has no solution."""


class InstallError(Exception):
    pass


class SkipTest(Exception):
    pass


def numbers(version):
    return [int(part) if part.isdigit() else part for part in re.split(r"[.-]", version)]


def in_range(version, text):
    """Whether a version lies in `a:b`, `a:`, `:b` or `a`, whose ends include what they are a prefix of."""
    version = numbers(version)
    low, separator, high = text.partition(":")
    if not separator:
        high = low
    below = bool(low) and version < numbers(low)
    above = bool(high) and version[: len(numbers(high))] > numbers(high)
    return not below and not above


class Constraint:
    """`name@versions+on~off key=value %cxx=compiler@versions ^dependency...`, all parts optional."""

    def __init__(self, text=""):
        self.name, self.versions, self.variants, self.compiler, self.dependencies = "", [], {}, None, []
        part, at = self, 0
        pattern = re.compile(
            r"\s*(?:\^(?P<dependency>[\w-]+)|%(?:cxx=)?(?P<compiler>[\w-]+)|@(?P<versions>[\w.:-]+)|(?P<sign>[+~])(?P<switch>\w+)"
            r"|(?P<key>\w+)=(?P<value>[\w.,]+)|(?P<name>[\w-]+))"
        )
        text = text.strip()
        while at < len(text):
            match = pattern.match(text, at)
            if not match:
                raise ValueError(f"cannot read the spec '{text}' from '{text[at:]}'")
            at = match.end()
            if match["dependency"]:
                part = Constraint()
                part.name = match["dependency"]
                self.dependencies.append(part)
            elif match["compiler"]:
                part = self.compiler = Constraint()
                part.name = match["compiler"]
            elif match["versions"]:
                part.versions.append(match["versions"])
            elif match["switch"]:
                part.variants[match["switch"]] = match["sign"] == "+"
            elif match["key"]:
                part.variants[match["key"]] = match["value"]
            else:
                part.name = match["name"]

    def holds_for(self, spec):
        return (
            (not self.name or self.name == spec.name)
            and all(in_range(spec.version, versions) for versions in self.versions)
            and all(spec.variants.get(name) == value for name, value in self.variants.items())
            and (self.compiler is None or (spec.compiler is not None and self.compiler.holds_for(spec.compiler)))
            and all(
                dependency.name in spec.dependencies and dependency.holds_for(spec.dependencies[dependency.name])
                for dependency in self.dependencies
            )
        )


class Spec:
    def __init__(self, name, version, variants=None, compiler=None, prefix=""):
        self.name, self.version, self.compiler, self.prefix = name, version, compiler, Prefix(prefix)
        self.variants, self.dependencies = dict(variants or {}), {}

    def satisfies(self, text):
        return Constraint(text).holds_for(self)

    def __getitem__(self, name):
        return self.dependencies[name]


class Prefix(str):
    def __getattr__(self, folder):
        if folder.startswith("_"):
            raise AttributeError(folder)
        return Prefix(os.path.join(self, folder))


# --- directives: they run while a class body does ------------------------------------------------------------------

pending = []
conditions = []


def record(kind, **facts):
    facts["when"] = [Constraint(text) for text in [*conditions, facts.get("when") or ""]]
    pending.append((kind, facts))


class PackageBase:
    git = homepage = url = None
    run_tests = False

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        cls.directives, pending[:] = list(pending), []

    def __init__(self, spec=None, prefix=""):
        self.spec, self.prefix = spec, Prefix(prefix)

    @classmethod
    def all_directives(cls, kind):
        for base in reversed(cls.__mro__):
            for found, facts in base.__dict__.get("directives", ()):
                if found == kind:
                    yield facts


class when:
    def __init__(self, condition):
        self.condition = condition

    def __enter__(self):
        conditions.append(self.condition)

    def __exit__(self, *_):
        conditions.pop()


def variant(name, default=False, description="", values=None, multi=False, sticky=False, when=None):
    record("variant", name=name, default=default, values=values, multi=multi, description=description, when=when)


def version(name, sha256=None, branch=None, tag=None, commit=None):
    record("version", name=name, fixed=bool(sha256 or commit), branch=branch, tag=tag)


def depends_on(spec, when=None, type=("build", "link")):
    record("depends_on", spec=Constraint(spec), text=spec, when=when, type=type)


def extends(spec, when=None):
    depends_on(spec, when=when, type=("build", "run"))


def conflicts(spec, when=None, msg=None):
    record("conflict", spec=Constraint(spec), text=spec, when=when, msg=msg)


def requires(*specs, policy="one_of", when=None, msg=None):
    if len(specs) != 1:
        raise NotImplementedError("a choice of requirements")
    record("requirement", spec=Constraint(specs[0]), when=when, msg=msg)


def license(name, checked_by=None):
    record("license", name=name)


def run_after(phase):
    def mark(method):
        method.runs_after = phase
        return method

    return mark


def generator(*names, default=None):
    record("generator", name=default or names[0])


# --- what methods call ----------------------------------------------------------------------------------------------


def define(name, value):
    if isinstance(value, bool):
        return f"-D{name}:BOOL={'ON' if value else 'OFF'}"
    return f"-D{name}:STRING={';'.join(value) if isinstance(value, (list, tuple)) else value}"


join_path = os.path.join


def get_cmake_prefix_path(package):
    return [dependency.prefix for dependency in package.spec.dependencies.values() if dependency.prefix]


def cache_extra_test_sources(package, sources):
    package.kept = [sources] if isinstance(sources, str) else list(sources)


def install_tree(source, destination):
    shutil.copytree(source, destination)


class Executable:
    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, output=None, error=None):
        done = subprocess.run([self.path, *arguments], capture_output=output is not None, text=True, check=True)
        return (done.stdout or "") + (done.stderr or "")


def which(name, required=False):
    path = shutil.which(name)
    if path is None and required:
        raise FileNotFoundError(name)
    return Executable(path) if path else None


class working_dir:
    def __init__(self, path, create=False):
        self.path = path
        if create:
            os.makedirs(path, exist_ok=True)

    def __enter__(self):
        self.before = os.getcwd()
        os.chdir(self.path)

    def __exit__(self, *_):
        os.chdir(self.before)


def check_outputs(expected, actual):
    if not re.search(expected, actual):
        raise AssertionError(f"'{expected}' is not in '{actual}'")


class CMakePackage(PackageBase):
    variant("build_type", default="Release", values=("Debug", "Release", "RelWithDebInfo", "MinSizeRel"))
    depends_on("cmake", type="build")

    def define(self, name, value):
        return define(name, value)


class CudaPackage(PackageBase):
    cuda_arch_values = ("35", "50", "60", "70", "75", "80", "86", "87", "89", "90", "90a", "100", "100a", "100f", "103", "120", "121f")
    variant("cuda", default=False)
    variant("cuda_arch", default="none", values=("none", *cuda_arch_values), multi=True, when="+cuda")
    depends_on("cuda", when="+cuda")


class Package(PackageBase):
    pass


def load(path):
    """The only package class of a recipe."""
    names = dict(
        spack=types.ModuleType("spack"),
        **{"spack.package": sys.modules[__name__], "spack_repo": types.ModuleType("spack_repo")},
    )
    for name in ("builtin", "builtin.build_systems"):
        names[f"spack_repo.{name}"] = types.ModuleType(name)
    for name, contents in (
        ("cmake", {"CMakePackage": CMakePackage, "generator": generator}),
        ("cuda", {"CudaPackage": CudaPackage}),
        ("generic", {"Package": Package}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        names[f"spack_repo.builtin.build_systems.{name}"] = module
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        description = importlib.util.spec_from_file_location(f"recipe_{pathlib.Path(path).parent.name}", path)
        module = importlib.util.module_from_spec(description)
        description.loader.exec_module(module)
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, PackageBase) and value.__module__ == module.__name__
    ]
    return found


# --- concretizing ---------------------------------------------------------------------------------------------------


def holds(facts, spec):
    return all(condition.holds_for(spec) for condition in facts["when"])


def chosen_variants(recipe, spec, wanted):
    """Defaults and wishes; a conditional variant exists where its condition holds."""
    declared = {facts["name"]: facts for facts in recipe.all_directives("variant")}
    while True:
        before = dict(spec.variants)
        for name, facts in declared.items():
            if holds(facts, spec):
                spec.variants[name] = wanted.get(name, facts["default"])
            else:
                spec.variants.pop(name, None)
        if before == spec.variants:
            break
    for name, value in wanted.items():
        if name not in spec.variants:
            raise Refused(f"there is no variant {name} here")
        facts = declared[name]
        values = str(value).split(",")
        if facts["values"] and (len(values) > 1 and not facts["multi"] or not set(values) <= set(facts["values"])):
            raise Refused(f"{name} cannot be {value}")


def concretize(recipe, text="", versions=None, compiler="gcc@12.2.0"):
    """What a spec builds: its Spec, whose dependencies carry all that is asked of them. `versions` of dependencies as in
    {"kokkos": "4.7.02"}; a dependency without one has version 0 and takes any range. Raises Refused."""
    versions = versions or {}
    wish = Constraint(text)
    name, number = compiler.split("@")
    spec = Spec(wish.name or recipe.__name__.lower(), "main", compiler=Spec(name, number))
    chosen_variants(recipe, spec, wish.variants)

    asked = {}
    for facts in [*recipe.all_directives("depends_on"), *recipe.all_directives("requirement")]:
        constraints = facts["spec"].dependencies or [facts["spec"]]
        if not holds(facts, spec):
            continue
        for constraint in constraints:
            dependency = asked.setdefault(constraint.name, Spec(constraint.name, versions.get(constraint.name, "0")))
            dependency.types = getattr(dependency, "types", set()) | set(
                [facts["type"]] if isinstance(facts.get("type"), str) else facts.get("type", ())
            )
            dependency.ranges = getattr(dependency, "ranges", []) + constraint.versions
            for key, value in constraint.variants.items():
                if dependency.variants.setdefault(key, value) != value:
                    raise Refused(f"{constraint.name} with {key} both {dependency.variants[key]} and {value}")
    for dependency in asked.values():
        if dependency.name in versions:
            for versions_asked in dependency.ranges:
                if not in_range(dependency.version, versions_asked):
                    raise Refused(f"{dependency.name} {dependency.version} is not in {versions_asked}")
    spec.dependencies = asked
    for facts in recipe.all_directives("conflict"):
        if holds(facts, spec) and facts["spec"].holds_for(spec):
            raise Refused(facts["msg"] or facts["text"])
    return spec
