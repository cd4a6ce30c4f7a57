"""The command completion: scripts that complete commands, options and names of shipped files in bash, zsh and fish."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scaleproof.commands.arguments import Command

_SCENARIOS: Final = ("what-if", "systems", "demo", "netlab")
# Folders whose names complete an argument, by what help calls it.
_FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "SCENARIO": _SCENARIOS,
    "A": (*_SCENARIOS, "clusters"),
    "B": (*_SCENARIOS, "clusters"),
    "STUDY": ("studies",),
    "MODEL": ("models",),
    "NAME": (*_SCENARIOS, "studies", "claims", "models", "clusters", "frameworks", "devices"),
    "WORD": ("scenarios", "systems", "studies", "claims", "models", "clusters", "frameworks", "devices"),
}
_FUNCTION: Final = """\
_scaleproof() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words={commands}
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
            *) case "${{COMP_WORDS[1]}}" in
{words}
            esac ;;
        esac
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o default -F _scaleproof scaleproof
"""
_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    completion = Command(commands, "completion", _completion, "print a script that completes commands and names in a shell")
    completion.parser.epilog = (
        'bash: eval "$(scaleproof completion bash)" in ~/.bashrc; zsh: eval "$(scaleproof completion zsh)" in ~/.zshrc; '
        "fish: scaleproof completion fish > ~/.config/fish/completions/scaleproof.fish"
    )
    completion.add("SHELL", "the shell: bash, zsh or fish", choices=list(_SCRIPTS))


def _completion(options: argparse.Namespace) -> int:
    from scaleproof.commands.main import parser_of_commands

    print(_SCRIPTS[options.shell](parser_of_commands().commands), end="")
    return 0


def _bash(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for bash."""
    values, words = [], []
    for name, parser in parsers.items():
        flags = [flag for action in parser._actions for flag in action.option_strings]
        words.append(f"                {name}) words={shlex.quote(' '.join([*flags, *_names(parser)]))} ;;")
        for action in parser._actions:
            if action.option_strings and action.choices:
                pattern = " | ".join(f'"{name} {flag}"' for flag in action.option_strings)
                values.append(f"            {pattern}) words={shlex.quote(' '.join(map(str, action.choices)))} ;;")
    return _FUNCTION.format(commands=shlex.quote(" ".join(parsers)), values="\n".join(values), words="\n".join(words))


def _zsh(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for zsh, which runs the one for bash."""
    return _ZSH + _bash(parsers)


def _fish(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for fish."""
    lines = [
        f"complete -c scaleproof -f -n __fish_use_subcommand -a {name} -d {shlex.quote(parser.description or '')}"
        for name, parser in parsers.items()
    ]
    for name, parser in parsers.items():
        begin = f"complete -c scaleproof -n '__fish_seen_subcommand_from {name}'"
        for action in parser._actions:
            flag = next((one[2:] for one in action.option_strings if one.startswith("--")), "")
            choices = f" -xa {shlex.quote(' '.join(map(str, action.choices)))}" if action.choices else ""
            text = shlex.quote((action.help or "").replace("%%", "%"))
            lines += [f"{begin} -l {flag}{choices or (' -r' if action.nargs != 0 else '')} -d {text}"] if flag else []
        names = " ".join(_names(parser))
        lines += [f"{begin} -a {shlex.quote(names)}"] if names else []
    return "\n".join([*lines, ""])


def _names(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Words that complete the positional arguments of a command."""
    from scaleproof.simulator.common import catalog

    for action in parser._actions:
        if not action.option_strings:
            yield from map(str, action.choices or ())
            folders = _FOLDERS.get(str(action.metavar), ())
            yield from folders if action.metavar == "WORD" else (name for folder in folders for name in catalog.names(folder))


_SCRIPTS: Final[Mapping[str, Callable[[Mapping[str, argparse.ArgumentParser]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
