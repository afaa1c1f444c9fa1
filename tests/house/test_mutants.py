"""The list of mutants that change nothing: each exists, and none is drawn."""

import mutants
import mutants_alike
import mutations


def test_mutants_that_change_nothing_exist_and_are_not_drawn():
    for file, listed in mutants_alike.ALIKE.items():
        source = (mutants.ROOT / file).read_text(encoding="utf-8")
        assert {*listed} <= {mutant.name for mutant in mutations.mutants(file, source)}
        assert not {*listed} & {mutant.name for mutant in mutants.drawn([file], 10**6, 0)}
