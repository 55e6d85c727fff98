"""Print the reference of the settings: `python -m sidecar.config --markdown` or `--yaml`."""

import click

from sidecar.config.reference import reference_markdown, reference_yaml


@click.command()
@click.option(
    "--yaml/--markdown", "as_yaml", default=False, help="The text of deploy/sidecar.yaml, or of docs/configuration.md."
)
def main(as_yaml: bool) -> None:
    """Print the reference of the settings, made from the code."""
    click.echo(reference_yaml() if as_yaml else reference_markdown(), nl=False)


if __name__ == "__main__":
    main(prog_name="python -m sidecar.config")
