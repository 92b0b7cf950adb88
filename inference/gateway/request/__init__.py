"""One request on its way through the fleet, from its first header to its settled bill.

 1 identify   who asks, by the headers alone                     identify.py
 2 parse      one ``Request``, by the dialect                    inference/wire/
 3 run        finds the model, and owns the steps below          run.py
 4 permit     the key's models, and what a minute allows         admission.py
 5 place      a ready replica, or a load that is waited for      place.py
 6 reserve    the most that it may use, on every cap             tokens.py, reserve.py
 7 submit     a frame to the neuron's inbox                      attempt.py, ../redis/inbox.py
 8 accept     or another replica, where no engine took it        attempt.py
              or another of the model's targets                  run.py, ../upstreams/
 9 stream     events, until the last                             event_stream.py
              each checked                                       answer_check.py
              each counted                                       tokens.py
10 settle     what it used; one outcome for log and ledger       outcome.py
"""
