"""The tools that plant bugs and draw mutants: each bug has tests, and no mutant is drawn that changes nothing."""

import mutants
import mutants_alike
import mutations
import plant_bugs


def test_every_bug_has_its_function_and_files_of_tests(backend):
    assert len(plant_bugs.bugs_of(backend)) > 70


def test_mutants_that_change_nothing_exist_and_are_not_drawn():
    for file, listed in mutants_alike.ALIKE.items():
        source = (mutants.ROOT / file).read_text(encoding="utf-8")
        assert {*listed} <= {mutant.name for mutant in mutations.mutants(file, source)}
        assert not {*listed} & {mutant.name for mutant in mutants.drawn([file], 10**6, 0)}
