"""The command completion: scripts that complete commands, options and names of shipped files in bash, zsh and fish."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scaleproof.commands.arguments import Command

_SCENARIOS: Final = ("what-if", "systems", "demo", "netlab")
# Folders whose names complete an argument, by what help calls it, and by option.
_FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "SCENARIO": _SCENARIOS,
    "A": (*_SCENARIOS, "clusters"),
    "B": (*_SCENARIOS, "clusters"),
    "STUDY": ("studies",),
    "MODEL": ("models",),
    "NAME": (*_SCENARIOS, "studies", "claims", "models", "clusters", "frameworks", "devices", "reliability", "inputs"),
    "WORD": (
        "scenarios",
        "systems",
        "studies",
        "claims",
        "models",
        "clusters",
        "frameworks",
        "devices",
        "reliability",
        "inputs",
    ),
    "--cluster": ("clusters",),
    "--device": ("devices",),
    "--gpu": ("devices",),
    "--like": ("devices",),
    "--model": ("models",),
}
# Where no word is given, or none fits, the shell completes names of files.
_FUNCTION: Final = """\
_scaleproof() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    local flags= names=
    if [ "$COMP_CWORD" -gt 2 ]; then
        case "$command" in
            {groups}) command="$command ${{COMP_WORDS[2]}}" ;;
        esac
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        names={commands}
    else
        case "$command $previous" in
{values}
            *) case "$command" in
{words}
            esac ;;
        esac
    fi
    case "$current" in
        -*) COMPREPLY=( $(compgen -W "$flags" -- "$current") ) ;;
        *) COMPREPLY=( $(compgen -W "$names" -- "$current") ) ;;
    esac
}}
complete -o default -F _scaleproof scaleproof
"""
_ZSH: Final = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    completion = Command(commands, "completion", _completion)
    completion.parser.epilog = (
        'bash: eval "$(scaleproof completion bash)" in ~/.bashrc; zsh: eval "$(scaleproof completion zsh)" in ~/.zshrc; '
        "fish: scaleproof completion fish > ~/.config/fish/completions/scaleproof.fish"
    )
    completion.add("SHELL", "the shell: bash, zsh or fish", choices=list(_SCRIPTS))


def _completion(options: argparse.Namespace) -> int:
    from scaleproof.commands.main import command_line

    print(_SCRIPTS[options.shell](command_line().commands), end="")
    return 0


def _bash(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for bash."""
    values, words, without_words = [], [], []
    for name, parser in _all_commands(parsers):
        flags = " ".join(flag for action in parser._actions for flag in action.option_strings)
        names = " ".join(word for action in parser._actions if not action.option_strings for word in _words(action))
        words.append(f'                "{name}") flags={shlex.quote(flags)} names={shlex.quote(names)} ;;')
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                pattern = " | ".join(f'"{name} {flag}"' for flag in action.option_strings)
                found = " ".join(_words(action))
                values += [f"            {pattern}) names={shlex.quote(found)} ;;"] if found else []
                without_words += [] if found else [pattern]
    groups = " | ".join(name for name, parser in parsers.items() if _commands_of(parser))
    commands = shlex.quote(" ".join(parsers))
    values.append(f"            {' | '.join(without_words)}) ;;")
    return _FUNCTION.format(groups=groups, commands=commands, values="\n".join(values), words="\n".join(words))


def _zsh(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for zsh, which runs the one for bash."""
    return _ZSH + _bash(parsers)


def _fish(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for fish."""
    lines = [
        f"complete -c scaleproof -f -n __fish_use_subcommand -a {name} -d {shlex.quote(parser.description or '')}"
        for name, parser in parsers.items()
    ]
    for name, parser in _all_commands(parsers):
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        inner = " ".join(_commands_of(parser))
        begin = f"complete -c scaleproof -n '{seen}{f'; and not __fish_seen_subcommand_from {inner}' if inner else ''}'"
        for action in parser._actions:
            words = shlex.quote(" ".join(_words(action)))
            only = " -f" if action.choices else ""
            text = shlex.quote((action.help or "").replace("%%", "%"))
            if action.option_strings:
                flags = " ".join(
                    f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in action.option_strings
                )
                value = "" if action.nargs == 0 else " -r" if words == "''" else f" -r{only} -a {words}"
                lines.append(f"{begin} {flags}{value} -d {text}")
            elif words != "''":
                lines.append(f"{begin}{only} -a {words}")
    return "\n".join([*lines, ""])


def _all_commands(parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Names and parsers of commands, and of those within groups: import, import topo."""
    for name, parser in parsers.items():
        yield name, parser
        yield from ((f"{name} {inner}", found) for inner, found in _commands_of(parser).items())


def _commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The commands of a group by name."""
    return next((dict(action.choices) for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {})


def _words(action: argparse.Action) -> Iterator[str]:
    """Words that complete the value of an argument; a range of numbers has no words."""
    from scaleproof.simulator.common import catalog

    if action.choices is not None:
        yield from () if isinstance(action.choices, range) else map(str, action.choices)
        return
    folders = next((_FOLDERS[name] for name in action.option_strings or (str(action.metavar),) if name in _FOLDERS), ())
    yield from folders if action.metavar == "WORD" else (name for folder in folders for name in catalog.names(folder))


_SCRIPTS: Final[Mapping[str, Callable[[Mapping[str, argparse.ArgumentParser]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
