"""Who goes first, and whose blocks are taken."""

from __future__ import annotations

from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt, step_until

from llmlab.engine.request import Status


def finishing_order(engine) -> list[str]:
    return list(engine.trace._index.finished)


def test_lower_priority_values_go_first_and_equal_ones_as_they_came():
    engine = mock_engine(slots=1)
    runs = [engine.submit(prompt(4, i), greedy(3), priority=p) for i, p in enumerate((5, 0, 5, -2, 0))]
    engine.run_until_idle()
    assert finishing_order(engine) == [runs[i].id for i in (3, 1, 4, 0, 2)]
    assert_all_returned(engine)


def test_first_come_first_served_without_priorities():
    engine = mock_engine(slots=2)
    runs = [engine.submit(prompt(4, i), greedy(3)) for i in range(6)]
    engine.run_until_idle()
    admitted = engine.trace.schedule.dropna(subset="admission").request_id
    assert list(admitted) == [run.id for run in runs]


def test_an_urgent_request_is_admitted_next_but_interrupts_nobody():
    engine = mock_engine(slots=1)
    running = engine.submit(prompt(4), greedy(8))
    waiting = engine.submit(prompt(4, 1), greedy(3))
    engine.step()
    urgent = engine.submit(prompt(4, 2), greedy(3), priority=-1)
    engine.run_until_idle()
    assert finishing_order(engine) == [running.id, urgent.id, waiting.id]
    assert running.usage["preemptions"] == 0


def test_the_urgent_request_has_the_budget_first():
    engine = mock_engine(budget=6)
    engine.submit(prompt(12), greedy(3))
    engine.step()
    urgent = engine.submit(prompt(4, 1), greedy(3), priority=-1)
    engine.step()  # the running prompt uses the whole budget once more, nobody is interrupted
    assert urgent.token_ids == []
    engine.step()
    assert len(urgent.token_ids) == 1
    engine.step()
    assert engine.trace._index.steps[-1].rows[0].request_id == urgent.id


def test_the_victim_is_the_youngest_of_the_lowest_class():
    engine = mock_engine(num_blocks=10, slots=4)
    runs = [engine.submit(prompt(5, i), greedy(12), priority=p) for i, p in enumerate((1, 0, 1, 0))]
    step_until(engine, lambda: engine.scheduler.waiting)
    (victim,) = engine.scheduler.waiting
    assert (victim.id, victim.status) == (runs[2].id, Status.PREEMPTED)
    engine.run_until_idle()
    order = engine.trace.schedule.query("action == 'preempted'")
    assert {runs[0].id, runs[2].id} >= set(order.request_id)
    assert runs[1].usage["preemptions"] == runs[3].usage["preemptions"] == 0
    for run in runs:
        assert run.token_ids == continuation(run.prompt_token_ids, 12)
    assert_all_returned(engine)


def test_an_older_request_of_a_lower_class_gives_way_to_a_younger_urgent_one():
    engine = mock_engine(num_blocks=6, slots=2)
    old = engine.submit(prompt(5), greedy(14), priority=1)
    engine.step()
    urgent = engine.submit(prompt(5, 1), greedy(14), priority=0)
    engine.run_until_idle()
    assert old.usage["preemptions"] > 0
    assert urgent.usage["preemptions"] == 0
    assert_all_returned(engine)


def test_a_preempted_request_goes_before_later_ones_of_its_class():
    engine = mock_engine(num_blocks=6, slots=2)
    runs = [engine.submit(prompt(5, i), greedy(14)) for i in range(4)]
    engine.run_until_idle()
    assert runs[1].usage["preemptions"] > 0
    assert finishing_order(engine) == [run.id for run in runs]
    assert_all_returned(engine)


def test_a_stream_of_urgent_requests_delays_but_never_loses_the_patient_one():
    engine = mock_engine(slots=1)
    patient = engine.submit(prompt(4), greedy(3), priority=9)
    for i in range(20):
        engine.submit(prompt(4, i + 1), greedy(2))
        engine.step()
        assert patient.token_ids == []
    engine.run_until_idle()
    assert patient.token_ids == continuation(prompt(4), 3)
    assert_all_returned(engine)
