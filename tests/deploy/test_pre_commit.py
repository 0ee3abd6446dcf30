"""pre-commit has no rules of its own, but calls make."""

import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from tests.deploy.container_files import ROOT


def test_every_hook_is_a_target_of_the_makefile() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert hooks
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    for hook in hooks:
        command, target = hook["entry"].split()
        assert (command, hook["language"]) == ("make", "system")
        assert f"\n{target}:" in makefile
