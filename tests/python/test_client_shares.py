"""Ranks whose planner gives them plans that do not fit: what they refuse, what
they ask for again. The planner is made in Python, the sockets are real."""
import time
import unittest

from test_client_faults import HAVE_GRPC, FaultsTest, text, with_images

if HAVE_GRPC:
    import pipeloom
    from pipeloom import messages
    from fake_planner import RANKS


class SharesTest(FaultsTest):
    """A share that is not what was asked for is named, counted, not run."""

    def test_every_field_is_compared(self):
        def text_tokens(share):
            share.microbatches[0].text_tokens += 1

        def one_sample_twice(share):
            share.microbatches[1].samples[0].sample = 0

        def no_checksum(share):
            share.plan_checksum.Clear()

        def free_of_another(share):
            share.program.instructions.add().free = 99

        def fetch_alone(share):
            share.program.instructions.add().fetch.task = share.tasks[0].index

        def program_of_another(share):
            share.program.instructions.pop()
            share.program.instructions.pop(0)

        cases = [(lambda s, f=field, v=value: setattr(s, f, v),
                  f"{field} is {value!r}, not ")
                 for field, value in (("job_id", "another"), ("step", 8),
                                      ("replica", 1), ("rank", 2),
                                      ("attempt", 3), ("num_ranks", 2))]
        cases += [(text_tokens, "text_tokens are 12, not 11"),
                  (one_sample_twice, "samples are 1 samples, not"),
                  (no_checksum, "plan_checksum is 0"),
                  (lambda s: s.module_names.reverse(), "module_names is"),
                  (free_of_another, "frees edge 99"),
                  (fetch_alone, "fetch of task"),
                  (program_of_another, "rank 1")]
        for spoil, why in cases:
            planner = self.planner()
            session = self.session(planner, rank=1, submits=True,
                                   pauses=(0.01, 0.05))
            session.expect(0, text(5, 6))
            self.assertIsNotNone(session.wait(0, 60.0))
            planner.spoil = self.once(spoil)
            with self.logs("INFO") as logs:
                session.expect(1, text(5, 6))
                # The right one is taken when it comes.
                self.assertIsNotNone(session.wait(1, 60.0), why)
            self.assertEqual(session.counts["misfits"], 1)
            self.assertIn(why, logs.output[0])
            self.assertIn("not for this trainer", logs.output[0])
            session.close()

    @staticmethod
    def once(spoil):
        """Returns a function that spoils the first share only."""
        left = [spoil]

        def first(share):
            if left:
                left.pop()(share)

        return first

    def test_a_share_that_never_fits_is_given_up(self):
        planner = self.planner()
        session = self.session(planner, strict=True, pauses=(0.01, 0.05))

        def misfit(share):
            if share.step == 1:
                share.step = 8

        planner.spoil = misfit
        session.expect(1, text(5, 6))
        with self.assertRaisesRegex(pipeloom.MisfitError, "step is 8, not 1"):
            session.wait(1, 60.0)
        self.assertIn("step is 8, not 1", session.refusal(1))
        asked = len(planner.asked("GetRankPlan", 1))
        session.expect(2, text(5, 6))
        self.assertIsNotNone(session.wait(2, 60.0))
        time.sleep(0.2)  # Some pauses between two tries.
        self.assertEqual(len(planner.asked("GetRankPlan", 1)), asked)
        self.assertEqual(session.counts["misfits"], 2)
        self.assertEqual(session.counts["refused"], 1)

    def test_misfits_that_change_are_asked_for_again(self):
        planner = self.planner()
        session = self.session(planner, pauses=(0.01, 0.05))
        steps = iter((8, 9, 8))

        def misfit(share):
            share.step = next(steps, share.step)

        planner.spoil = misfit
        session.expect(1, text(5, 6))
        self.assertIsNotNone(session.wait(1, 60.0), session.refusal(1))
        self.assertEqual(session.counts["misfits"], 3)

    def test_a_frozen_module_has_no_backward(self):
        """Rank 0 has all of the vision module, which the service freezes."""
        def freeze(share):
            gone = {t.index for t in share.tasks if t.task.module == 0 and
                    t.task.kind == messages.enum_value("TaskKind", "BACKWARD")}
            self.assertEqual(len(gone), 2)
            for field, kept in (
                    ("tasks", lambda t: t.index not in gone),
                    ("edges", lambda e: e.edge.to not in gone)):
                values = [v for v in getattr(share, field) if kept(v)]
                share.ClearField(field)
                getattr(share, field).extend(values)
            program = [i for i in share.program.instructions
                       if i.WhichOneof("instruction") != "compute" or
                       i.compute not in gone]
            share.program.ClearField("instructions")
            share.program.instructions.extend(program)

        frozen, trained = messages.Job(name="job"), messages.Job(name="job")
        frozen.training.frozen_modules.append("vision")
        for job, fits in (("dip-vlm-s", True), (frozen, True),
                          (trained, False)):
            planner = self.planner()
            planner.spoil = freeze
            session = self.session(planner, job=job, pauses=(0.01, 0.05))
            session.expect(0, with_images(5, 6))
            plan = session.wait(0, 60.0)
            self.assertEqual(plan is not None, fits, session.refusal(0))
            if not fits:
                self.assertIn("pass B of stage 0, microbatch 0, "
                              "sub-microbatch 0 is missing; vision is not in "
                              "training.frozen_modules", session.refusal(0))
                self.assertEqual(session.counts["misfits"], 2)
            session.close()

    def test_a_cut_sample_is_refused_unless_the_trainer_cuts_samples(self):
        def cut(share):
            first, second = share.microbatches
            first.samples[0].piece.text_tokens = 2
            part = second.samples.add(sample=0)
            part.piece.text_tokens = 3
            part.piece.images.add(width_px=10, height_px=20)
            part.piece.videos.add(frames=4, seconds=0.5)
            part.piece.audio_seconds.append(1.5)

        planner = self.planner()
        planner.spoil = cut
        session = self.session(planner, pauses=(0.01, 0.05))
        session.expect(0, text(5, 6))
        self.assertIsNone(session.wait(0, 60.0))
        self.assertRegex(session.refusal(0), "sample 0 is longer than a micro"
                         "batch, .* microbatch 0 .*cuts_samples=True.*"
                         "training.microbatch_tokens")
        self.assertEqual(session.counts["refused"], 1)
        cutting = self.session(planner, cuts_samples=True)
        cutting.expect(0, text(5, 6))
        first, second = cutting.wait(0, 60.0).microbatches
        self.assertEqual((first.samples, first.pieces),
                         ((0,), (pipeloom.Sample(2),)))
        self.assertEqual((second.samples, second.pieces), ((1, 0), (
            None, pipeloom.Sample(3, ((10, 20),),
                                  ({"frames": 4, "seconds": 0.5},), (1.5,)))))
        self.assertEqual(second.cut_samples(), (0,))
        planner.spoil = lambda share: None
        session.expect(1, text(5, 6))
        for micro in session.wait(1, 60.0).microbatches:
            self.assertEqual((micro.pieces, micro.cut_samples()), ((), ()))

    def test_no_rank_runs_what_one_refused(self):
        planner = self.planner()
        group = self.group(planner)
        self.alike(group.run(0, text(5, 6)))
        session = group.ranks[2].session

        def to_rank_2(share):
            if share.rank == 2:
                share.step += 1

        planner.spoil = to_rank_2
        group.announce(1, text(6, 5))
        self.until(lambda: session.counts["misfits"] > 0)
        # No other answer comes, so the step is not waited for.
        for rank in group.ranks:
            rank.provider._wait = 0.1
        self.alike(group.get(1))
        self.assertEqual(group.counts("last_good"), [1] * RANKS)
        self.assertIsNone(session.ready(1))

    def test_single_calls_compare_likewise(self):
        planner = self.planner()
        with pipeloom.Client(planner.target) as client:
            session = self.session(planner)  # Opens the job.
            session.expect(0, text(5, 6))
            self.assertIsNotNone(session.wait(0, 60.0))
            self.assertEqual(client.rank_plan("job", 0, 0, 1).step, 0)
            for field, value in (("job_id", "another"), ("step", 8),
                                 ("replica", 1), ("rank", 2), ("attempt", 3)):
                planner.spoil = lambda s, f=field, v=value: setattr(s, f, v)
                with self.assertRaisesRegex(pipeloom.MisfitError,
                                            f"{field} is '?{value}'?, not"):
                    client.rank_plan("job", 0, 0, 1)
            self.assertEqual(client.misfits, 5)


if __name__ == "__main__":
    unittest.main()
