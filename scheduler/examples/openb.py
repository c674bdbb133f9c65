#!/usr/bin/env python3
"""Replays the published openb experiment and checks every placement with the trace's own checker.

  openb.py DATA_DIR SCHEDULER [--policy P] [--traces a,b] [--seeds 42,43] [--check]

DATA_DIR   folder with the node and task lists, the sequences and check_placements.py
SCHEDULER  the program `aliquot-scheduler`
--check    also run the checker: exit status 1 if a placement violates something, or a task was refused although it fitted

Prints the mean allocation at 100 and 130 % of demand, and the tasks for several devices that were not placed by 100 %.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data')
    parser.add_argument('scheduler')
    parser.add_argument('--policy', default='default')
    parser.add_argument('--traces', default='default,cpu250,gpushare40,multigpu20,gpuspec33')
    parser.add_argument('--seeds', default='42,43,44,45,46')
    parser.add_argument('--check', action='store_true')
    args = parser.parse_args()
    sys.path.insert(0, args.data)
    import make_arrivals
    import check_placements

    failed = False
    node_list = os.path.join(args.data, 'openb_node_list_gpu_node.csv')
    for trace in args.traces.split(','):
        typical = os.path.join(args.data, f'openb_pod_list_{trace}.csv')
        rows = []
        for seed in map(int, args.seeds.split(',')):
            with tempfile.TemporaryDirectory() as folder:
                nodes, arrivals, placements = (os.path.join(folder, f) for f in ('n.csv', 'a.csv', 'p.csv'))
                rank = make_arrivals.tie_ranks(trace, seed, args.data)
                with open(node_list, newline='') as source, open(nodes, 'w', newline='') as target:
                    reader = csv.DictReader(source)
                    writer = csv.DictWriter(target, reader.fieldnames, lineterminator='\n')
                    writer.writeheader()
                    writer.writerows(sorted(reader, key=lambda row: rank[row['sn']]))
                with open(arrivals, 'w', newline='') as target:
                    writer = csv.DictWriter(target, make_arrivals.COLUMNS, lineterminator='\n')
                    writer.writeheader()
                    writer.writerows(make_arrivals.arrivals(trace, seed, args.data))
                out = subprocess.run(
                    [args.scheduler, 'replay', '--nodes', nodes, '--arrivals', arrivals, '--typical', typical,
                     '--policy', args.policy, '--seed', str(seed), '--placements', placements],
                    check=True, capture_output=True, text=True).stdout
                summary = json.loads(out)
                rows.append(summary)
                if args.check:
                    found = check_placements.check(nodes, arrivals, placements, typical, refusals=True)
                    bad = found['violations'] or found['refused_though_feasible'] or found['moves']
                    for key in ('100', '130'):
                        bad = bad or abs(found['bin'][key] - summary[f'allocated_at_{key}']) > 0.001
                    if bad:
                        failed = True
                        print(f'{trace} {seed}: {found}', file=sys.stderr)

        def mean(value):
            return sum(value(row) for row in rows) / len(rows)
        print(f"{trace:12} {args.policy:10} @100 {mean(lambda r: r['allocated_at_100']):.2f}  "
              f"@130 {mean(lambda r: r['allocated_at_130']):.2f}  "
              f"unplaced {mean(lambda r: r['unplaced_at_100']['total']):.0f}  "
              f"several {mean(lambda r: r['unplaced_at_100']['several_devices']):.1f}  "
              f"checked {'yes' if args.check else 'no'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
