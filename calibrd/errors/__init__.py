"""Everything the SDK raises about the service.

CalibrdError
├── ServiceAway            it cannot be reached, or gave no answer in all the time that was given
│   └── MaybeDone          ... to something that must not be sent twice, and may have been done
├── StoreAway              a store that parts are sent straight to does not take them
├── NotCalibrd             something answers at this URL, but not a calibrd service
├── FitFailed              a fit ended without a version: ``code`` says why
├── FitWasCancelled        somebody cancelled it
├── WaitedTooLong          the time given to ``wait`` is over; the fit goes on
├── MapDamaged             bytes of a map that do not have the hash they should have
├── InputMismatch          an alias has moved to a version that takes other input
└── Refused                the service answered with a problem: ``code``, ``status``, ``request_id``
    ├── Malformed          400
    ├── Unauthenticated    401
    ├── Forbidden          403
    ├── NotFound           404
    ├── NotAcceptable      406
    ├── TooSlow            408
    ├── Conflict           409
    ├── Stale              412
    ├── TooLarge           413, 431
    ├── Unsupported        415
    ├── Invalid            422
    └── ServerTrouble      5xx
        ├── Unavailable    502, 503, 504, 429
        └── NoSpace        507

Below these, each code of the service has a class of its own, named after it: ``no_such_alias`` is
``NoSuchAlias``, a NotFound. A code that is newer than this SDK is raised as its status's class.
Input that breaks a rule is found before anything is sent, and is a DataError of ``calibrators``.

>>> NAMED["no_such_alias"].__name__
'NoSuchAlias'
"""

import re

from calibrd.errors import access_codes, body_codes, data_codes, registry_codes, run_codes
from calibrd.errors.access_codes import *  # noqa: F403 - one module for all who catch them
from calibrd.errors.body_codes import *  # noqa: F403
from calibrd.errors.data_codes import *  # noqa: F403
from calibrd.errors.kinds import *  # noqa: F403
from calibrd.errors.kinds import NoSpace, NotAcceptable, Refused
from calibrd.errors.registry_codes import *  # noqa: F403
from calibrd.errors.run_codes import *  # noqa: F403


def code_of(kind: type[BaseException]) -> str:
    """``ServiceAway`` is ``service_away``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


NAMED: dict[str, type[Refused]] = {
    code_of(kind): kind
    for module in (access_codes, body_codes, data_codes, registry_codes, run_codes)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
# two kinds that are also codes
NAMED |= {"no_space": NoSpace, "not_acceptable": NotAcceptable}
