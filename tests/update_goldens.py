"""Write anew what the commands of `commands.toml` print: python tests/update_goldens.py, from the root of a clone."""

import json

from goldens import ANSWERS, COMMANDS, FOLDER, answer_of, text_of


def main():
    """Write each file anew, and remove those of commands that are gone."""
    kept = set()
    for name in COMMANDS:
        kept |= {_write(f"{name}.txt", text_of(name))}
        answer = answer_of(name) if name in ANSWERS else None
        if answer is not None:
            kept |= {_write(f"{name}.json", json.dumps(answer, indent=1) + "\n")}
    for path in FOLDER.iterdir():
        if path.name not in kept:
            path.unlink()


def _write(name, text):
    (FOLDER / name).write_text(text, encoding="utf-8")
    return name


if __name__ == "__main__":
    main()
